"""The words that every wing speaks; imports nothing of ours from outside core."""
