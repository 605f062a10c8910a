"""Steps of migrations, a kind a module; `kinds` says which there are."""
