"""The ground floor: values, names, configuration, errors, time."""
