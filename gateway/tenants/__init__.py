"""Who a request is for, and how much each tenant may use."""
