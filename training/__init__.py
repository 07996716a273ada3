"""DeepSpeed training of the recipes of robustzoo; part of the checkout, not of the installed package."""
