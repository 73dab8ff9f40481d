"""The app that is handed to Flower."""
