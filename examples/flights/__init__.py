"""The departures of 2013 from New York, entered by several dispatchers at once."""
