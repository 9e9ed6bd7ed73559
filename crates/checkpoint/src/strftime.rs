//! Dates in prompts: the part of C's `strftime` that chat templates use.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A point of time, in the calendar of UTC.
struct Civil {
    year: i64,
    month: usize,
    day: i64,
    day_of_year: i64,
    weekday: usize,
    second_of_day: i64,
}

/// Formats the time `unix_seconds` in UTC, so that a prompt does not depend on where the machine stands. Names are
/// English. `Err` has the directive that is not known.
pub(crate) fn strftime(format: &str, unix_seconds: i64) -> Result<String, String> {
    let t = civil(unix_seconds);
    let (hour, minute, second) = (t.second_of_day / 3600, t.second_of_day / 60 % 60, t.second_of_day % 60);
    let (month, weekday) = (MONTHS[t.month - 1], DAYS[t.weekday]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        out += &match directive {
            Some('a') => weekday[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('b') => month[..3].to_owned(),
            Some('B') => month.to_owned(),
            Some('d') => format!("{:02}", t.day),
            Some('e') => format!("{:2}", t.day),
            Some('F') => format!("{:04}-{:02}-{:02}", t.year, t.month, t.day),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('j') => format!("{:03}", t.day_of_year),
            Some('m') => format!("{:02}", t.month),
            Some('M') => format!("{minute:02}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('S') => format!("{second:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('y') => format!("{:02}", t.year.rem_euclid(100)),
            Some('Y') => format!("{:04}", t.year),
            Some('%') => "%".to_owned(),
            other => return Err(format!("%{}", other.map(String::from).unwrap_or_default())),
        };
    }
    Ok(out)
}

/// The proleptic Gregorian date of a time. Years are counted from 1 March, so that the leap day is the last one.
fn civil(unix_seconds: i64) -> Civil {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    let days = unix_seconds.div_euclid(86_400);
    // 719,468 days lie between 0000-03-01 and 1970-01-01.
    let (era, day_of_era) =
        ((days + 719_468).div_euclid(DAYS_OF_400_YEARS), (days + 719_468).rem_euclid(DAYS_OF_400_YEARS));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / (DAYS_OF_400_YEARS - 1)) / 365;
    let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_from_march + 2) / 153;
    let day = day_from_march - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let day_of_year = if month > 2 { day_from_march + 60 + i64::from(is_leap) } else { day_from_march - 305 };
    Civil {
        year,
        month: month as usize,
        day,
        day_of_year,
        weekday: (days + 4).rem_euclid(7) as usize,
        second_of_day: unix_seconds.rem_euclid(86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_are_right() {
        for (seconds, text) in [
            (0, "Thu 01 Jan 1970 001 00:00:00 12 AM"),
            (951_782_400, "Tue 29 Feb 2000 060 00:00:00 12 AM"),
            (1_709_251_199, "Thu 29 Feb 2024 060 23:59:59 11 PM"),
            (1_709_251_200, "Fri 01 Mar 2024 061 00:00:00 12 AM"),
            (1_735_689_599, "Tue 31 Dec 2024 366 23:59:59 11 PM"),
            (4_107_542_400, "Mon 01 Mar 2100 060 00:00:00 12 AM"),
            (-1, "Wed 31 Dec 1969 365 23:59:59 11 PM"),
            (1_767_269_096, "Thu 01 Jan 2026 001 12:04:56 12 PM"),
        ] {
            assert_eq!(strftime("%a %d %b %Y %j %H:%M:%S %I %p", seconds).unwrap(), text);
        }
        assert_eq!(
            strftime("%A, %B %e %y %F %T %m %%", 0).unwrap(),
            "Thursday, January  1 70 1970-01-01 00:00:00 01 %"
        );
    }

    #[test]
    fn unknown_directives_are_refused() {
        assert_eq!(strftime("%Q", 0), Err("%Q".to_owned()));
        assert_eq!(strftime("100%", 0), Err("%".to_owned()));
    }
}
