"""What is run beside a training: memory calculator and command line."""
