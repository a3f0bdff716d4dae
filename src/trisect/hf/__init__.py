"""Read, score and edit the attention of Hugging Face models, after a proof that what is read is what they compute."""
