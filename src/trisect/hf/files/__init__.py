"""Load models, tokenizers and checkpoints from files; errors that name the model."""
