"""How does a person start it? Config files and flags, the machine, the loop, and what is seen and stored on the way."""
