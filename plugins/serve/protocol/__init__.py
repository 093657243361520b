"""OpenAI's requests and answers as structs, and what is wrong with a request in words."""
