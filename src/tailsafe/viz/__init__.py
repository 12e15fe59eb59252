"""Pictures. matplotlib is an extra: it is imported when a picture is asked for."""
