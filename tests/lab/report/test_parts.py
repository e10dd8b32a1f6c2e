"""Numbers of the page: three digits, and a dash where there is none."""

from vgg16gpu_lab.report.html.markup import error, number


def test_numbers():
    texts = {None: "-", 0: "0", 1234567.0: "1,234,567", 100.4: "100", 12.345: "12.3", 2.0: "2.00", 99.96: "100"}
    texts |= {0.00123: "0.00123", 0.00001234: "1.2e-05", -3.0: "-3.00"}
    assert {value: number(value) for value in texts} == texts
    assert (error(None), error(1.23e-6)) == ("-", "1.2e-06")
