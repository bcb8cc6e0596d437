# SPDX-License-Identifier: Apache-2.0
"""Evidence in, pages out.

This package turns an `specverify.evidence.records.Evidence` into documents for people:

* `specverify.report.html` writes one self-contained HTML page;
* `specverify.report.markdown` writes the short form for a CI step summary.

It reads evidence and nothing else: no subject is imported, no check is run and no
p-value is recomputed here, so a report can be made on a machine that has neither torch
nor the engine under test. Identical evidence gives identical bytes.
"""
