"""The native HTTP door. `app.build_app` makes the ASGI application; nothing else is for others to call."""
