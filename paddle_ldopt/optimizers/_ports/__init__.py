"""What single optimizers have from the libraries they are ported from, and from Paddle's class that they extend."""
