"""The explorer: one text inside one model, as a page or in a notebook."""
