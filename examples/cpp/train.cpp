// Trains the digits' step from a file of numbers and saves the weights.
//
//     python examples/cpp/export_digits.py
//     train digits.aicf digits.txt digits.safetensors [EPOCHS]
#include <aicf/aicf.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

int main(int argc, char** argv) {
    if (argc < 4) {
        std::fprintf(stderr, "usage: train STEP NUMBERS WEIGHTS [EPOCHS]\n");
        return 2;
    }
    const int epochs = argc > 4 ? std::atoi(argv[4]) : 10;
    try {
        auto step = aicf::runtime::Step::load(argv[1]);
        size_t rows = 0, pixels = 0;
        for (const aicf::runtime::Tensor& input : step.inputs())
            if (input.name == "x") {
                rows = static_cast<size_t>(input.shape[0]);
                pixels = static_cast<size_t>(input.shape[1]);
            }

        std::vector<float> images;
        std::vector<int32_t> digits;
        std::ifstream file(argv[2]);
        for (int number = 0; file >> number;)
            if (images.size() < (digits.size() + 1) * pixels)
                images.push_back(static_cast<float>(number) / 16);
            else
                digits.push_back(number);

        float loss = 0;
        for (int epoch = 1; epoch <= epochs; epoch++) {
            for (size_t at = 0; at + rows <= digits.size(); at += rows) {
                step.set("x", &images[at * pixels], rows * pixels * sizeof(float));
                step.set("labels", &digits[at], rows * sizeof(int32_t));
                step.run();
            }
            step.read("loss", &loss, sizeof loss);
            std::printf("epoch %d: loss %.6f\n", epoch, static_cast<double>(loss));
        }
        step.save_state(argv[3]);
    } catch (const aicf::runtime::Error& error) {
        std::fprintf(stderr, "%s: %s\n", error.kind().c_str(), error.what());
        return 1;
    }
}
