"""Problems (RFC 9457) as answers, pages and examples."""
