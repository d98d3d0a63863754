"""fixstar."""
