"""The index: scheduled versions by due time, as the server reads them."""
