"""Which of two models is more robust, and is that more than chance? The same images, one by one."""

import robustzoo
from robustzoo.reports.comparison import Comparison


def main(
    first: str = "vit_micro2.digits_linf.at_base", second: str = "vit_micro2.digits_linf.at_trh", n: int = 50
) -> Comparison:
    found = [
        robustzoo.evaluate(robustzoo.load(name), "digits", protocol="apgd-ce", n=n, progress=False)
        for name in (first, second)
    ]
    return robustzoo.compare(*found)


if __name__ == "__main__":
    print(main().text())
