"""The plugins that ship with Plait. They have no power that a third party's plugin lacks."""
