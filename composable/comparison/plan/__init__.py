"""What a comparison trains: arms, values to try, seeds, and the stages of training."""
