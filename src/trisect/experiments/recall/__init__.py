"""What pretraining adds: small models asked where people were born."""
