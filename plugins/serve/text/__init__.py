"""Prompts become token ids, pieces become text, and text becomes what was thought, said, called."""
