"""From alerts to incidents to notifications: group → dedup → notify."""
