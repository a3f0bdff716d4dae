"""One folder an experiment: what is asked, its rows and its page."""
