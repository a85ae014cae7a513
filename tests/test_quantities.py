"""Numbers to text and back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.errors import UsageError
from cephalo_cli.quantities import (
    format_bytes,
    format_change,
    format_count,
    format_percent,
    format_rate,
    format_seconds,
    format_share,
    parse_bytes,
    parse_memory,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("24GB", 24_000_000_000),
        ("24GiB", 25_769_803_776),
        ("24 gib", 25_769_803_776),
        ("  1.5 MiB ", 1_572_864),
        ("1.5kB", 1500),
        ("2TB", 2 * 10**12),
        ("2TiB", 2 * 2**40),
        ("1PB", 10**15),
        ("1PiB", 2**50),
        ("0.1GB", 100_000_000),
        ("0.3B", 0),
        ("007KiB", 7168),
        ("9007199254740993", 2**53 + 1),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_sizes_people_write(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "text",
    ["", " ", "GB", "24G", "24Gi", "24XB", "-1GB", "+1GB", "1e9", "1,5GB", "1.GB", ".5GB", "1_000", "0x10", "24 G B",
     "24GB/s", "nan", "inf", "NaNGB", "٣GB", "24GB\x00", "1 2"],
)  # fmt: skip
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert str(caught.value) == f"{text!r} is not a size (write it like 24GiB, 24GB or 1500000000)"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["9223372036854775808", "8192PiB", "10000PB", "9" * 40])
def test_a_size_beyond_any_memory_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert str(caught.value) == f"{text!r} is larger than any memory (write it like 24GiB, 24GB or 1500000000)"


def test_an_endless_size_is_cut_in_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes("9" * 5000 + "GB")
    assert caught.value.message == f"'{'9' * 37}...' is larger than any memory"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1", "'1' is 1 byte (did you mean 1GiB or 1MiB?)"),
        ("2", "'2' is 2 bytes (did you mean 2GiB or 2MiB?)"),
        ("1.5", "'1.5' is 2 bytes (did you mean 1.5GiB or 1.5MiB?)"),
        ("1048575", "'1048575' is 1048575 bytes (write its unit, such as 512MiB)"),
        ("24G", "'24G' is not a size (write it like 24GiB, 24GB or 1500000000)"),
    ],
)
def test_memory_whose_unit_was_forgotten_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_memory(text)
    assert str(caught.value) == message


def test_memory_that_is_meant_is_taken() -> None:
    assert [parse_memory(text) for text in ("0", "512KiB", "3B", "1048576")] == [0, 2**19, 3, 2**20]


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("48GB/s", 48e9),
        ("1.5 GiB/s", 1.5 * 2**30),
        ("10Gbit/s", 1.25e9),
        ("800 kbit/s", 1e5),
        ("48GB", 48e9),
        ("1000", 1000.0),
        ("5B/s", 5.0),
        ("0", 0.0),
    ],
)
def test_bandwidths_people_write(text: str, bytes_per_s: float) -> None:
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["", "fast", "48G", "48/s", "10Gbit", "10Gbps", "-1GB/s", "48GB/h", "1e9"])
def test_what_is_no_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rate(text)
    assert str(caught.value) == f"{text!r} is not a bandwidth (write it like 48GB/s, 10Gbit/s or 48000000000)"


def test_a_bandwidth_whose_unit_was_forgotten_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        parse_rate("48")
    assert str(caught.value) == "'48' is 48 bytes a second (did you mean 48GB/s or 48MB/s?)"


@given(st.floats(1e3, 1e18))
def test_a_formatted_bandwidth_reads_back_within_its_digits(bytes_per_s: float) -> None:
    text = format_rate(bytes_per_s, "B")
    assert abs(parse_rate(text) - bytes_per_s) <= 0.0051 * bytes_per_s


@given(st.integers(0, 2**63 - 1))
def test_plain_bytes_round_trip(num_bytes: int) -> None:
    assert parse_bytes(str(num_bytes)) == num_bytes
    assert parse_bytes(f"{num_bytes} B") == num_bytes


@given(st.integers(0, 2**59))
def test_a_formatted_size_reads_back_within_its_digits(num_bytes: int) -> None:
    assert abs(parse_bytes(format_bytes(num_bytes)) - num_bytes) <= 0.0051 * num_bytes


@given(st.integers(0, 2**60), st.integers(0, 2**60))
def test_a_larger_size_never_reads_smaller(one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert parse_bytes(format_bytes(small)) <= parse_bytes(format_bytes(large))


@given(st.floats(1e-9, 1e18))
def test_no_unit_shows_a_thousand_of_itself(value: float) -> None:
    assert not re.match(r"1000 [num]", format_seconds(value))
    assert not re.match(r"1000 [kMGT]", format_count(value))
    assert not re.match(r"1024 ([KMGT]i)?B", format_bytes(value))


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (22.5 * 2**30, "22.5 GiB"),
        (225 * 2**30, "225 GiB"),
        (1000 * 2**30, "1000 GiB"),
        (2**50, "1.00 PiB"),
        (2**63, "8192 PiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_sizes_people_read(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.0, "0.0 %"),
        (2e-14, "<0.01 %"),
        (0.0004, "0.04 %"),
        (0.00099, "0.10 %"),
        (0.001, "0.1 %"),
        (0.0261, "2.6 %"),
        (1.0, "100.0 %"),
    ],
)
def test_a_share_that_is_not_nothing_does_not_look_like_it(fraction: float, text: str) -> None:
    assert format_share(fraction) == text


def test_no_percentage_is_minus_nothing() -> None:
    assert [format_percent(-1e-5), format_percent(-0.1), format_change(-1e-5)] == ["0.0 %", "-10.0 %", "0.0 %"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2.5e-9, "2.50 ns"),
        (1e-6, "1.00 us"),
        (12.3e-6, "12.3 us"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1, "1.00 s"),
        (99.96, "100 s"),
        (3600, "3600 s"),
        (-0.5, "-500 ms"),
    ],
)
def test_durations_people_read(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (8, "8"),
        (9999, "9999"),
        (1.5, "1.50"),
        (10_000, "10.0 k"),
        (124_439_808, "124 M"),
        (999_960, "1.00 M"),
        (1_412_345_678, "1.41 G"),
        (3.12e14, "312 T"),
        (2e15, "2.00 P"),
    ],
)
def test_counts_people_read(count: float, text: str) -> None:
    assert format_count(count) == text


def test_rates_people_read() -> None:
    assert format_rate(5.21, "samples") == "5.21 samples/s"
    assert format_rate(4.29e6, "B") == "4.29 MB/s"
    assert format_rate(312e12, "FLOP") == "312 TFLOP/s"


def test_percentages_people_read() -> None:
    assert format_percent(0.9) == "90.0 %"
    assert format_percent(0.12345) == "12.3 %"
    assert format_percent(1.7) == "170.0 %"


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.031, "+3.1 %"), (-0.031, "-3.1 %"), (0.0, "0.0 %"), (-0.0004, "0.0 %"), (0.0004, "0.0 %")]
)
def test_changes_have_a_sign_where_they_have_a_size(fraction: float, text: str) -> None:
    assert format_change(fraction) == text
