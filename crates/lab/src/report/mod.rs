// SPDX-License-Identifier: MIT OR Apache-2.0
//! From records to tables, `summary.json` and `report.html`.
