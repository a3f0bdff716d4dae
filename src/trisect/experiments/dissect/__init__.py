"""All four sources at one small size, and the page that answers with everything."""
