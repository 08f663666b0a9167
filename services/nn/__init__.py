"""What the engines of several services share about torch."""
