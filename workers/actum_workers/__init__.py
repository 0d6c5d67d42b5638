"""actum on Celery."""
