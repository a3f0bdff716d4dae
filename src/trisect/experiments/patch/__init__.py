"""Interchange interventions (activation patching): q, k or v of a site from a donor text."""
