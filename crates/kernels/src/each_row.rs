//! Rows shared out among threads, for ops that treat each row by itself.

use crate::linear::{RowsMut, SharedRows};
use crate::pool::Team;

/// Elements that one chunk of work should have: a thread that joins costs about a microsecond, and the vector ops pass over
/// some 4 elements a nanosecond.
const CHUNK_ELEMENTS: usize = 8192;

/// Calls `f(row, elements)` for each row's first `width` elements, on several threads where there is enough to do.
///
/// # Panics
/// If the rows are narrower than `width`.
pub fn each_row(team: &mut Team, rows: RowsMut<'_>, width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    each_row_pair(team, rows, width, RowsMut { data: &mut [], stride: 0, n_rows: 0 }, 0, |row, a, _| {
        f(row, a)
    });
}

/// As [`each_row`] for two sets of rows that are written together. The second may be empty (width 0).
///
/// # Panics
/// If rows are narrower than their widths, or there are fewer rows in the second set and it is not empty.
pub fn each_row_pair(
    team: &mut Team,
    a: RowsMut<'_>,
    a_width: usize,
    b: RowsMut<'_>,
    b_width: usize,
    f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    a.check("rows", a_width);
    assert!(b_width == 0 || b.n_rows == a.n_rows, "{} rows beside {}", b.n_rows, a.n_rows);
    b.check("second rows", b_width);
    let n_rows = a.n_rows;
    let per_chunk = (CHUNK_ELEMENTS / a_width.max(1)).max(1);
    let (a, b) = (SharedRows::new(a), SharedRows::new(b));
    let run = |row: usize| {
        // SAFETY: row `row` is visited once, and rows do not overlap: each is `width <= stride` wide (checked above, as is that the
        // last one ends inside the data).
        let (a, b) = unsafe { (a.part(row, 0..a_width), b.part(row, 0..b_width)) };
        f(row, a, b);
    };
    if n_rows <= per_chunk || team.threads() == 1 {
        (0..n_rows).for_each(&run);
    } else {
        team.run(n_rows.div_ceil(per_chunk), |_, chunk| {
            (chunk * per_chunk..((chunk + 1) * per_chunk).min(n_rows)).for_each(&run);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_visited_once_and_gaps_stay() {
        for threads in 1..=3 {
            let mut team = Team::new(threads).unwrap();
            for (n_rows, width, stride) in [(0, 5, 7), (1, 5, 7), (3, 4096, 4099), (40, 1000, 1000)] {
                let mut a = vec![0.5; n_rows * stride];
                let mut b = vec![0.0; n_rows * 2];
                let rows = RowsMut { data: &mut a, stride, n_rows };
                each_row_pair(&mut team, rows, width, RowsMut::dense(&mut b, 2), 2, |row, a, b| {
                    a.iter_mut().for_each(|x| *x += row as f32);
                    b[1] += 1.0;
                });
                for row in 0..n_rows {
                    let a = &a[row * stride..(row + 1) * stride];
                    assert!(a[..width].iter().all(|&x| x == row as f32 + 0.5));
                    assert!(a[width..].iter().all(|&x| x == 0.5));
                    assert_eq!(b[row * 2..row * 2 + 2], [0.0, 1.0]);
                }
            }
        }
    }
}
