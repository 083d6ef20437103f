"""Until the Trainer's branch is merged, which no longer imports it."""


def check_class(saved: str, present: str) -> None:
    """Raise ValueError unless both names of optimizer classes are equal."""
    if saved != present:
        problem = f"The saved state is of {saved}: resume with the same class."
        raise ValueError(f"{problem} Received: optimizer of type {present}")
