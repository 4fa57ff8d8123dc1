"""The tests a stranger runs: `pytest --pyargs properties.suite --subject mylib.adapter:codec` (`properties.plugin`)."""
