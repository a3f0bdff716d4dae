"""Several models as units: seeds of one recipe or revisions of one model, each kept when it is finished, put together on one page."""
