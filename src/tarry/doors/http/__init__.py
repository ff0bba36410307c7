"""The native HTTP door. `app.build_app` makes the application of the HTTP kit; nothing else is for others to call."""
