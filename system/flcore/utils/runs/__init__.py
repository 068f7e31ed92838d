"""What a run leaves on disk: its name, result file, run.json, checkpoints; how they are written and read back."""
