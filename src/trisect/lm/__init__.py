"""Our own small language models: fleets, their training, their attackers, and rewinding."""
