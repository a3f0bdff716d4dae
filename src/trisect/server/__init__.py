"""The page that answers: type a sentence, switch q, k or v of any site, and see what changes; served on this machine alone."""
