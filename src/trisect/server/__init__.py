"""The interactive page: type a sentence, replace q, k or v of any site, and see the changes; served on this machine alone."""
