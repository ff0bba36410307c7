"""The dashboard: a page of plain HTML, CSS and JavaScript modules that the server carries with it.

It knows nothing of the server but the native API, and holds nothing but the token, for as long as its tab is open.
"""
