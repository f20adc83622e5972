"""What a run's config says: composed, completed, checked."""
