"""The files of deploy/, with other people's tools and with the real server."""
