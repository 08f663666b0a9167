"""The making and the judging of the packaged checkpoints. No wheel and no image contains this folder."""
