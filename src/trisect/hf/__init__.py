"""Read, score and edit the attention of Hugging Face models, after verifying that what is read is what they compute."""
