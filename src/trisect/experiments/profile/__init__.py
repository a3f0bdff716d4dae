"""What queries, keys and values keep and drop of each label, head by head, against random maps of the same input."""
