"""Small Hugging Face models that trisect trains itself."""
