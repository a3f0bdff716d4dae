"""Several models as units: seeds of one recipe or revisions of one model, measured one after the other, on one page."""
