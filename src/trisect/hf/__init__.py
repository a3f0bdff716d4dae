"""Other people's models, listened to: any Hugging Face model whose attention passes the proof."""
