"""Changes over time: trends, and the pages of conversations, users, tenants, tools and models."""
